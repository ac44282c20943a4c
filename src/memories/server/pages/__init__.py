"""The web page for people: server-rendered HTML with the same verbs and JSON as the API.

A view takes a request and the memories that its reader may see. It returns the API's JSON for the
same request, and additional values for the template. Pages only read; `static/page.js` makes
changes through the API.
"""
