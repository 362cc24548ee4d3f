"""The faults that must do no harm: what must hold, the tests of each row, and their controls.

A control runs with the protection off and shows the harm, so that a test which could not fail is
noticed. Names are ``path::function`` below ``tests/``.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One fault."""

    fault: str
    holds: str
    """What must hold."""
    tests: tuple[str, ...]
    controls: tuple[str, ...] = ()


def _in(path: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{path}::test_{name}" for name in names)


CONVERTING, WRITING = "faults/test_converting.py", "faults/test_store_writing.py"
DAMAGE, TRAINING = "faults/test_store_damage.py", "faults/test_training.py"
PREDICTING, REMOTE = "faults/test_predicting.py", "faults/test_object_store.py"
MODEL, CHECKPOINT = "test_model.py", "learn/test_checkpoint.py"
READERS = "tools/readers"

MATRIX = {
    1: Row(
        "convert is killed, at random and at each write or rename",
        "no store or a complete one; the same command ends in the same bytes",
        _in(CONVERTING, "kill_at_a_change_of_the_folder__loses_nothing",
            "kill_at_random_instants__loses_nothing")
        + _in(WRITING, "kill_at_every_change_of_the_folder__loses_nothing"),
        _in(CONVERTING, "control__half_a_store_is_seen")
        + _in(WRITING, "control__without_the_rename_a_kill_leaves_half_a_store"),
    ),
    2: Row(
        "train is killed, at random and inside a checkpoint",
        "the resumed model has the bytes of a run without a kill; an older checkpoint loads",
        _in(TRAINING, "kill__at_random_instants", "kill__inside_a_write",
            "kill__at_every_sync_rename_and_piece"),
        _in(TRAINING, "kill__control_with_a_part_of_the_state_lost_the_bytes_differ")
        + _in("learn/test_train.py",
              "resume__control_any_part_of_the_state_that_is_lost_shows"),
    ),
    3: Row(
        "predict, explain, tune or compare is killed",
        "the same command ends in the same bytes; no half file has a final name",
        _in(PREDICTING, "predict__killed_at_some_changes_goes_on_to_the_same_bytes",
            "predict__killed_at_random_goes_on_to_the_same_bytes")
        + _in("faults/test_tuning_and_explaining.py",
              "folder__killed_at_some_changes_ends_with_the_same_bytes",
              "folder__killed_at_many_changes_ends_with_the_same_bytes",
              "folder__killed_at_random_ends_with_the_same_bytes")
        + _in("faults/test_comparing.py",
              "compare__killed_at_every_change_goes_on_to_the_same_table",
              "compare__killed_at_random_goes_on_to_the_same_table_and_leaves_no_process"),
        _in("faults/test_tuning_and_explaining.py",
            "control__a_trial_that_changed_between_two_runs_shows")
        + _in("measure/test_part_checksums.py",
            "complete_part__control_without_checksums_a_changed_file_passes"),
    ),
    4: Row(
        "a chunk is deleted, cut, flipped, swapped or of another time, in both backends",
        "an error that names the file; nothing silent",
        _in(DAMAGE, "flipped_bits__are_never_silent",
            "every_file_cut_or_lengthened__is_noticed", "every_file_deleted__is_noticed",
            "every_file_swapped_with_its_neighbour__is_noticed",
            "every_file_of_another_time__is_noticed"),
        _in(DAMAGE, "control__without_checksums_flipped_bits_are_silent",
            "control__without_checksums_the_check_finds_nothing"),
    ),
    5: Row(
        "descriptions are edited or damaged: zarr.json, manifest, Parquet footer",
        "an error when the store is opened",
        _in(DAMAGE, "edited_manifest__is_refused_at_open",
            "edited_zarr_json__is_refused_at_open", "edited_footer__is_refused_at_open"),
        _in(DAMAGE, "control__an_edited_manifest_that_is_signed_again_is_opened"),
    ),
    6: Row(
        "offsets fall or end elsewhere; labels are out of range",
        "refused when the store is opened, read or verified",
        _in(DAMAGE, "lie__is_refused_by_reading_and_by_the_check",
            "counts_that_disagree__are_refused_at_open"),
        _in(DAMAGE, "control__without_the_check_of_labels_a_lie_is_read"),
    ),
    7: Row(
        "a read fails or hangs, or the thread that reads ahead dies",
        "an error in the consumer within the deadline; the process ends",
        _in(TRAINING, "store__a_read_that_fails_names_the_file",
            "store__a_read_that_hangs_is_told_within_the_deadline")
        + _in("blocks/test_prefetch.py", "read_ahead__a_thread_that_dies_with_exit_is_told_too",
              "read_ahead__a_hung_read_does_not_keep_the_process_alive"),
    ),
    8: Row(
        "an object store answers wrongly, late or never",
        "right after another try, or an error with the key within the deadline; never zeros",
        _in(REMOTE, "fault__that_passes_is_mended",
            "fault__that_stays_is_an_error_within_the_deadline",
            "fault__that_stays_is_never_wrong_data"),
        _in(REMOTE, "control__without_checks_wrong_data_come",
            "control__without_a_second_try_what_passes_is_an_error",
            "control__without_retries_a_503_stays",
            "control__without_a_deadline_a_hang_hangs"),
    ),
    9: Row(
        "the disk is full in convert, in a checkpoint or in predict",
        "an error with the bytes; older checkpoints stay; no store appears",
        _in(CONVERTING, "full_disk__is_told_and_gone_on_from",
            "full_disk__says_about_how_much_is_needed")
        + _in(TRAINING, "disk_full__in_a_checkpoint_leaves_the_older_ones"),
    ),
    10: Row(
        "a destination is read-only or missing, or two write to one",
        "refused before work begins; the owner is named",
        _in(WRITING, "destination_without_rights__is_refused_before_work_starts",
            "two_writers_of_one_store__are_told_of_each_other")
        + _in(TRAINING, "two__processes_on_one_run_the_second_names_the_first"),
        _in(WRITING, "control__without_the_lock_a_second_writer_begins"),
    ),
    11: Row(
        "a store is read while it is written or replaced",
        "invisible until it is complete; never a mixture",
        _in(WRITING, "store_being_written__cannot_be_seen",
            "store_replaced_under_a_reader__is_never_a_mixture"),
    ),
    12: Row(
        "a source is cut or changes between two runs",
        "an error with file and record; the old conversion does not go on",
        _in(CONVERTING, "source_cut_short_between_two_runs__is_refused",
            "source_cut_short_while_it_is_read__is_an_error")
        + _in(f"{READERS}/test_jsonl.py",
              "jsonl__a_file_cut_anywhere_is_refused_or_loses_whole_lines")
        + _in(f"{READERS}/test_csv_cells.py",
              "csv__a_file_cut_anywhere_is_refused_or_loses_whole_lines"),
    ),
    13: Row(
        "values are not finite; labels or ids are wrong or repeated; rows differ in length",
        "refused with the first place",
        _in(WRITING, "nonsense__is_refused_with_its_place_and_leaves_no_trace",
            "ids_that_come_twice__are_refused_whatever_part_they_are_in"),
        _in(WRITING, "control__without_the_check_of_values_nonsense_is_stored"),
    ),
    14: Row(
        "bags without rows, without labels or with all labels",
        "a stated rule; no infinite score, no division by zero",
        _in("bags/test_writer.py", "bags_with_every_label_and_with_none__are_stored",
            "empty_bags__are_dropped_and_counted_across_parts")
        + _in("measure/test_ranking.py",
              "ranking_metrics__of_bags_with_no_labels_and_all_are_as_written")
        + _in("kernel/test_step.py",
              "step__of_a_bag_without_labels_sets_the_dummy_against_a_label"),
    ),
    15: Row(
        "one bag has a million rows",
        "it converts within 1 GiB",
        _in(CONVERTING, "bag_of_a_million_rows__converts")
        + _in(WRITING, "bag_of_a_million_rows__is_written_and_checked_within_a_gigabyte"),
    ),
    16: Row(
        "a model and a store differ in features or labels",
        "an error before bags are read",
        _in(MODEL, "check_store__says_what_differs")
        + _in("measure/test_scoring.py", "check_fits__refuses_another_number_of_features"),
    ),
    17: Row(
        "a model or checkpoint is tampered with",
        "refused; no code runs; little memory",
        _in(MODEL, "load__refuses_a_flipped_bit_anywhere", "load__runs_nothing_from_a_pickle",
            "load__refuses_headers_that_lie_and_holds_little_memory"),
        _in(CHECKPOINT, "checkpoint__control_a_flip_goes_unnoticed_without_the_checksum"),
    ),
    18: Row(
        "small files declare much, nest deeply or point to other files",
        "refused before memory is allocated",
        _in(f"{READERS}/test_npz.py",
            "small_file_that_declares_much__is_refused_before_allocation")
        + _in(f"{READERS}/test_hdf5_access.py", "hdf5__a_bomb_is_refused_before_it_is_read")
        + _in(f"{READERS}/test_jsonl.py", "jsonl__deep_nesting_is_refused")
        + _in(f"{READERS}/test_matlab73.py", "matlab__links_to_other_files_are_not_followed")
        + _in(DAMAGE, "signed_manifest__that_names_a_path_outside_is_refused_at_open"),
        _in(f"{READERS}/test_hdf5_access.py",
            "hdf5__a_bomb_would_be_read_were_it_not_refused")
        + _in(f"{READERS}/test_matlab5.py",
              "matlab__a_bomb_would_be_read_were_it_not_refused")
        + _in(f"{READERS}/test_text.py",
              "line_blocks__a_bomb_would_be_held_were_it_not_refused"),
    ),
    19: Row(
        "a store, checkpoint or model is of a future format",
        "an error with both versions",
        _in(DAMAGE, "future_format__is_refused_with_both_versions")
        + _in(CHECKPOINT, "checkpoint__of_a_future_format_says_so")
        + _in(MODEL, "load__names_a_format_of_the_future"),
        _in(MODEL, "load__control_a_reader_of_the_future_reads_the_file"),
    ),
    20: Row(
        "train gets SIGINT or SIGTERM, or a second one",
        "a checkpoint within seconds; the second signal ends it at once",
        _in(TRAINING, "signal__saves_says_how_to_go_on_and_ends",
            "signal__a_second_one_ends_at_once"),
    ),
    21: Row(
        "workers are killed or need too much memory; the scheduler is gone",
        "the exact result, or an error that says which option helps",
        _in("measure/test_predict.py", "predict__a_worker_killed_in_the_middle_changes_nothing",
            "predict__a_worker_over_its_memory_says_so_and_which_option")
        + _in("verbs/test_on_clusters.py", "scheduler__that_is_killed_gets_one_line"),
    ),
    22: Row(
        "a store is several times as large as the memory",
        "convert, train, evaluate and predict end, page cache included",
        _in("faults/test_little_memory.py", "everything__finishes_in_a_fifth_of_the_corpus"),
    ),
    23: Row(
        "read-ahead, threads that read, chunks or backend differ",
        "training and metrics have the same bits",
        _in("learn/test_train.py", "resume__with_any_read_ahead_memory_and_checkpoints",
            "train__chunk_size_and_backend_change_nothing")
        + _in("measure/test_evaluate.py", "evaluate__backends_and_sparse_rows_agree"),
    ),
    24: Row(
        "a process forks after use; four threads score",
        "no hang and no abort",
        _in("measure/test_predict.py", "predict__from_four_threads_and_after_a_fork"),
    ),
    25: Row(
        "fsync, rename or close fails",
        "never reported as saved",
        _in(WRITING, "failing_fsync_or_rename__is_never_reported_as_saved")
        + _in(TRAINING, "sync__that_fails_is_never_reported_as_saved")
        + _in(MODEL, "save__never_reports_a_failed_write_as_saved"),
        _in(TRAINING,
            "sync__control_if_errors_of_fsync_were_ignored_it_would_be_reported_as_saved"),
    ),
    26: Row(
        "the clock moves",
        "the order of checkpoints comes from the step",
        _in(CHECKPOINT, "checkpoint__order_comes_from_the_step_whatever_the_clock_says"),
        _in(CHECKPOINT, "checkpoint__control_in_the_order_of_the_clock_an_old_one_is_loaded"),
    ),
    27: Row(
        "files of an old crash lie about",
        "ignored, and removed by their owner only",
        _in(WRITING, "leftovers__of_other_processes_are_ignored_and_cleaned_at_the_end",
            "leftovers__of_other_settings_are_refused_and_kept")
        + _in("measure/test_prediction_folder.py", "folder__removes_what_a_killed_process_left"),
        _in("measure/test_prediction_folder.py",
            "folder__control_without_the_cleaning_what_a_killed_process_left_stays"),
    ),
}  # fmt: skip
"""Rows by number."""
WITHOUT_CONTROL = {7, 9, 11, 12, *range(14, 17), *range(20, 25)}
"""Rows that have no control yet: a row may leave this set, and none may enter it."""
