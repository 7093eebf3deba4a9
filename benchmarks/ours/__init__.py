"""The works on this toolkit, as a user would write them: an await per message, or a batch receiver."""
