"""The broker: SQL in, right rows out, with a receipt."""
