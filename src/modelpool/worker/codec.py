"""From the payload of an INFER frame to a request in a copy's queue."""

from __future__ import annotations

from modelpool.errors import UnknownVersion
from modelpool.protocol.inference import ALL_JSON, Body, decode_request, read_timeout_s
from modelpool.worker.hosted import Hosted
from modelpool.worker.runs import Item


def decode_item(hosted: Hosted, link: object, call: int, json_bytes: int, version: int, body: Body, now: float) -> Item:
    """Decode a request for this copy (version 0: the default). Raises UnknownVersion, InvalidRequest or InvalidTensor."""
    version = version or hosted.default_version
    if version not in hosted.versions:
        raise UnknownVersion(f"Request for unknown model: '{hosted.spec.model}' version {version} is not found")
    forms = hosted.forms
    if forms is not None and json_bytes < 0 and type(body) is bytes:
        formed = forms.read(body, version)
        if formed is not None:
            return Item(call, formed, ALL_JSON, version, formed.form.rows if hosted.model.max_batch else 1, len(body), now, None, link)
    request, wanted = decode_request(body, json_bytes, version)
    rows = 1
    if hosted.model.max_batch:
        for first in request.inputs.values():
            rows = first.shape[0] if first.shape else 1
            break
    deadline = None
    if request.parameters:
        timeout_s = read_timeout_s(request.parameters.get("timeout"))
        deadline = now + timeout_s if timeout_s is not None else None
    return Item(call, request, wanted, version, rows, len(body), now, deadline, link)
