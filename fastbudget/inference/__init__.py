"""From a trained model to a verified artifact."""

from .artifact import Artifact, load_artifact
from .exporter import export
from .verification import Verification

__all__ = ["Artifact", "Verification", "export", "load_artifact"]
