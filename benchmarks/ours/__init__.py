"""The same works on this toolkit, in the code a user would write: an await per message, or a batch receiver."""
