"""The HTTP door: requests in OpenAI's form, read, run by a model's loop and answered."""
