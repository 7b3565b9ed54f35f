r"""SWE-bench Lite (Jimenez et al. 2024, arXiv:2310.06770): 300 issues of 12 Python projects, the test split. The hub's card
states no licence; the issues and code belong to the projects, under their licences.

Version 1. Source: the hub's parquet; no package holds these rows. A row, shortened:
    {"repo": "astropy/astropy", "instance_id": "astropy__astropy-12907", "base_commit": "d16bfe05a744909de4b27f58...",
     "patch": "diff --git a/astropy/modeling/separable.py ...", "test_patch": "diff --git ...",
     "problem_statement": "Modeling's `separability_matrix` does not compute separability correctly ...",
     "hints_text": "", "created_at": "2022-03-03T15:14:54Z", "version": "4.3", "FAIL_TO_PASS": "[...]",
     "PASS_TO_PASS": "[...]"}

Unscored. Whether a patch is right shows only in the project's own container, with its dependencies; this harness has no
such containers, and a similarity of patches is no score. The task is here as text of its kind, for acceptance and speed,
as the DDTree paper uses it: asked as one user message, the project's name, the issue, and a request for a patch. The
issue alone is shown, without any of the project's files, so answers are written blind.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tasks.base import Sample, Score
from tasks.rows import read_rows, text_fields, unique_ids

INSTRUCTION = "Explain what is wrong, then give a patch as a unified diff that resolves the issue."


@dataclass(frozen=True, kw_only=True)
class SweBenchLite:
    version: ClassVar[int] = 1
    metric: ClassVar[str | None] = None

    def load(self, path: Path) -> list[Sample]:
        rows = read_rows(path)
        fields = [text_fields(row, "instance_id", "repo", "problem_statement") for row in rows]
        unique_ids(rows, [name for name, _, _ in fields])
        return [
            Sample(id=f"swe_bench_lite/{name}", messages=[{"role": "user", "content": question(repo, issue)}])
            for name, repo, issue in fields
        ]

    def score(self, sample: Sample, completion: str) -> Score:
        return Score(value=None)


def question(repo: str, issue: str) -> str:
    return f"This issue was opened in the repository {repo}:\n\n{issue.strip()}\n\n{INSTRUCTION}"
