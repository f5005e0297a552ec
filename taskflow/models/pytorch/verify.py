def verified(module, examples, followed):
    pass
