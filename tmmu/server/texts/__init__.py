"""Texts of clients: the loop that generates them, and what turns tokens into text and chats into prompts."""
