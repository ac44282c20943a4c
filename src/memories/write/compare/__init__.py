"""Decides whether two statements say the same thing, or whether one corrects the other."""
