"""Files and batches of OpenAI's API: requests as lines of JSON, answered when nobody else wants the box."""
