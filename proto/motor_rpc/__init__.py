"""What both daemons share: the wire between them, and how they speak to systemd."""
