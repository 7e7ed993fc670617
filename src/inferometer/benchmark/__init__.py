"""What the real server does: drives an OpenAI-compatible endpoint and records every request's truth."""
