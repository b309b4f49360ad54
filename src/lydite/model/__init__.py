"""Loading a model and its tokenizer, chat templates, flat forward passes, saving."""
