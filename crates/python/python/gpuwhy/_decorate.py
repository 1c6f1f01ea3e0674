"""Functions with a step or a span around each call."""

import functools
import inspect


def wrap(scope, function):
    """`function` with a scope like `scope` around each call, until its end if it is a coroutine function."""
    again = scope.again
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args, **kwargs):
            with again():
                return await function(*args, **kwargs)

    else:

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            with again():
                return function(*args, **kwargs)

    return wrapper
