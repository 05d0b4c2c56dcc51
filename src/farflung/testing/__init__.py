"""Public conformance kits and fakes for members of the interchangeable rooms: ``from farflung.testing import check_codec``."""

from farflung.testing.codecs import check_codec
from farflung.testing.engines import check_engine
from farflung.testing.messages import check_message

__all__ = ["check_codec", "check_engine", "check_message"]
