"""``fb.check_claim``: whether a claim about a training run can be true."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...core.errors import InvalidInputError
from .claim import Claim, with_fields
from .claim_checks import CHECKS, CheckedClaim
from .claim_reading import read_claim
from .findings import KINDS, Finding
from .plausible_model import model_of


@dataclass(frozen=True, kw_only=True)
class ClaimReport:
    """Whether a claim can be true.

    Attributes:
        verdict: ``"impossible"``, ``"contradictory"`` or ``"implausible"``, the worst finding's kind;
            ``"plausible"`` when all checks passed; ``"unchecked"`` when the claim says too little for any.
        findings: what is wrong, worst first.
        checked: what was compared with what, in words.
        claim: what was understood.
        unread: pieces of the text that were not.
        notes: how doubtful pieces were understood.
    """

    verdict: str
    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    claim: Claim
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing was found wrong, and something was checked."""
        return self.verdict == "plausible"

    def to_json(self) -> dict[str, Any]:
        """Return the report with the fields that the claim says."""
        said = {}
        for name, value in vars(self.claim).items():
            if value is not None and value is not False:
                said[name] = value.key if name == "device" else value if _is_plain(value) else str(value)
        return {
            "verdict": self.verdict,
            "findings": [asdict(finding) for finding in self.findings],
            "checked": list(self.checked),
            "claim": said,
            "unread": list(self.unread),
            "notes": list(self.notes),
        }


def check_claim(text: str | Mapping[str, Any] | None = None, **fields: Any) -> ClaimReport:
    """Check a claim about a training run against hardware, arithmetic and itself.

    Found are: more than 100% of the peak; the peak with sparsity, of another precision or of another device taken
    for the dense one; a precision that the device lacks; steps faster than any layout is predicted to be; more
    memory than there is; figures that contradict each other.

    Args:
        text: as people write it: ``"150 ms/step, 8xA100, 524288 tokens/step, 124M"``. What can't be read is in the
            report's ``unread``. A mapping is taken as fields.
        **fields: fields of :class:`Claim`, instead of the text or over it: ``mfu=1.04, hardware="h100"``.

    Raises:
        InvalidInputError: there is neither text nor field, or a field makes no sense.
    """
    if isinstance(text, Mapping):
        fields = {**text, **fields}
        text = None
    if not fields and not (isinstance(text, str) and text.strip()):
        raise InvalidInputError('check_claim needs a text such as "150 ms/step, 8xA100, 524288 tokens/step, 124M".')
    read = read_claim(text or "")
    claim = with_fields(read.claim, fields)
    model = model_of(claim)
    checked = CheckedClaim(claim, model)
    findings = [finding for check in CHECKS for finding in check(checked)]
    findings.sort(key=lambda finding: KINDS.index(finding.kind))
    verdict = findings[0].kind if findings else "plausible" if checked.checked else "unchecked"
    return ClaimReport(
        verdict=verdict,
        findings=tuple(findings),
        checked=tuple(checked.checked),
        claim=claim,
        unread=read.unread,
        notes=read.notes,
    )


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)
