"""Programs that a launcher starts, one process a rank. Only these import torch; nothing else imports them."""
