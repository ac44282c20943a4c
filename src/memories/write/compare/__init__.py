"""Decides whether two statements say the same, or whether one corrects the other."""
