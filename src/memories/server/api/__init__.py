"""What may be asked over HTTP, by whom, and what each route does: the application that `server`
runs.
"""
