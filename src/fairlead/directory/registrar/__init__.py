"""A broker's registrar: tells the directory of its broker and of the applications connected there."""
