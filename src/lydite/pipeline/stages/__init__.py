"""The kinds of stage. Each is one class: its settings, and a ``run`` from artifact to artifact."""
