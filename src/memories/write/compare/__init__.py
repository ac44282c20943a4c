"""Decides whether two statements say the same, or one corrects the other."""
