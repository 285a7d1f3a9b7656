"""Planted errors in what every lab does around its measurement."""

FILE, TESTS = "labkit/conduct.py", "tests/test_conduct.py"


def plant(name, old, new, test):
    return dict(name=name, file=FILE, old=old, new=new, tests=[f"{TESTS}::{test}"])


BAD_RUN = "test_a_bad_run_is_kept_as_failed_with_what_it_has"
REPLAY = "test_replay"
NEWEST = "test_newest_records_are_the_good_committed_ones_of_each_preset"
MUTANTS = [
    plant("a_failed_oracle_is_recorded_as_ok", " and all(oracle.passed for oracle in outcome.oracles)", "", BAD_RUN),
    plant("a_run_without_oracle_is_ok", "bool(outcome.oracles)", "True", BAD_RUN),
    plant("nothing_says_that_nothing_was_checked", '{"message": "nothing was checked: the run has no oracle"}', "None",
          BAD_RUN),
    plant("a_failed_launch_stops_the_caller", "except LaunchError as error:", "except ZeroDivisionError as error:",
          "test_a_failed_launch_names_the_rank"),
    plant("every_error_is_called_a_bad_file", "except (ValueError, LookupError)", "except (ValueError, Exception)",
          "test_other_errors_are_not_swallowed"),
    plant("prediction_after_the_measurement", '    write_json(run_dir / "prediction.json", prediction)\n', "",
          "test_a_good_run"),
    plant("artifacts_of_the_top_folder_only", 'run_dir.rglob("*")', 'run_dir.glob("*")', "test_a_good_run"),
    plant("replay_shows_another_settings_data", "        if odd:\n            raise",
          "        if False:\n            raise", REPLAY),
    plant("replay_takes_a_failed_run", 'not run_id and run_status(path) == "ok"', "not run_id", REPLAY),
    plant("replay_takes_the_oldest", "load_record(known[-1])", "load_record(known[0])", REPLAY),
    plant("failed_records_are_shown", ' if run_status(path) == "ok"]\n    return list', "]\n    return list", NEWEST),
    plant("local_runs_pass_for_committed_ones", ", roots=[RECORDS]", "", NEWEST),
]
