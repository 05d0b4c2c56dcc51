"""Tables of the library ``datasets``: local Parquet, JSONL, CSV and Arrow files, and folders of ``save_to_disk``.

In the order of data flow:

``files``      the files behind a path as one table, mapped into memory
``shards``     tar files as a table
``columns``    columns of numbers as fields
``chats``      messages as tokens, with the tokens that count in the loss
``documents``  a column of text or chats as tokens on disk
``packing``    which tokens fill which sample
``tokens``     packed samples as fields
"""

from farflung.data.tables.columns import ColumnSource
from farflung.data.tables.tokens import TokenSource

__all__ = ["ColumnSource", "TokenSource"]
