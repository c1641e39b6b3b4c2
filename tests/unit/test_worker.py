"""The process that checks a day."""

import logging
import warnings

import pytest

from common.process.worker import without_advice


def test_libraries_advice_is_dropped_and_later_words_are_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = logging.getLogger("a library's")
    handler = logging.StreamHandler()
    logger.addHandler(handler)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with without_advice():
            logger.critical("advice")
            warnings.warn("advice", stacklevel=1)
        assert not seen
        logger.critical("later")
        warnings.warn("later", stacklevel=1)
    assert [str(each.message) for each in seen] == ["later"]
    logger.removeHandler(handler)
    said = capsys.readouterr().err
    assert "later" in said and "advice" not in said
