"""The report: everything about a plan as one data value, and a page that shows it."""

from taskflow.report.data import report_data
from taskflow.report.page import page, write_page

__all__ = ["page", "report_data", "write_page"]
