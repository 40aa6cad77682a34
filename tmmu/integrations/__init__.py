"""tmmu in the tools that people train and test with: callbacks of trainers, and a plugin of pytest.

Each module imports the tool that it is for, and nothing imports them but their users.
"""
