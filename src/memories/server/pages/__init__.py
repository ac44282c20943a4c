"""The pages that a person sees: server-rendered HTML over the same verbs and JSON as everything else.

A view takes the memories that its reader may see and what was asked for; it returns the JSON that the API gives for
the same question, and what a template needs beside it. Pages only read: what changes something is a call of the API,
made by `static/page.js`.
"""
