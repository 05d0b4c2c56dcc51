"""Public conformance kits and fakes for members of the interchangeable rooms: ``from farflung.testing import check_codec``.

- ``codecs``, ``engines``, ``operator_cases``, ``operator_case_table``: conformance of codecs and engines.
- ``reference``, ``replicas``: plain training loops to compare with.
- ``fuzz``, ``damage``, ``decoders``, ``messages``: decoders against damaged bytes.
"""

from farflung.testing.codecs import check_codec
from farflung.testing.engines import check_engine
from farflung.testing.messages import check_message

__all__ = ["check_codec", "check_engine", "check_message"]
