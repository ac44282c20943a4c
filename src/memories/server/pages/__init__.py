"""The pages that a person sees: server-rendered HTML over the same verbs and JSON as everything
else.

A view takes the memories that its reader may see and the request; it returns the JSON that the API
gives for the same request, and more values for the template. Pages only read: `static/page.js`
makes changes through the API.
"""
