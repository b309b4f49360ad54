"""Where problems come from: files, the hub, generators, and how their columns become prompts."""
