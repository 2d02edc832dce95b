from fastbudget.evaluation import phase
from fastbudget.report import write_report


def test_the_report_shows_a_runs_checklist(tmp_path):
    assert "Quality checklist" not in write_report(tmp_path, {}).read_text()
    checklist = phase("release").checklist().answered("untouched", "pass", "<b>asked</b> the owner")
    checklist.write(tmp_path)
    page = write_report(tmp_path, {}).read_text()
    assert "Quality checklist" in page
    assert "Not every item passes." in page
    assert "&lt;b&gt;asked&lt;/b&gt; the owner" in page
    assert page.count("not done") == 9


def test_a_damaged_checklist_does_not_stop_the_report(tmp_path):
    (tmp_path / "checklist.json").write_text("{")
    assert "could not be read" in write_report(tmp_path, {}).read_text()
