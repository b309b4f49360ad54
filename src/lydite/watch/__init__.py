"""What a run says of itself: its event log, its rollouts on disk, honest intervals, and the view in
the terminal.

Nothing here changes a run; everything here can be left out of one. Imports without torch.
"""
