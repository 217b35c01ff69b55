"""The repository: which models there are, read from their files without loading any."""

from modelpool.repository.catalogue import Repository, diff
from modelpool.repository.entry import Entry
from modelpool.repository.names import check_name

__all__ = ["Entry", "Repository", "check_name", "diff"]
