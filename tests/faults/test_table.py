"""Which test shows what bigpca does about which fault; every test that is named here exists.

Needs root and Debian's iproute2: the network tests; root: small disks and memory control groups. They skip without.
"""

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
FAULTS: dict[str, tuple[str, ...]] = {
    "1 a worker is killed in mid-pass": (
        "engine/test_same_bits.py::test_a_worker_killed_in_mid_pass_changes_no_bit_and_is_reported",
        "estimators/linear/test_krylov_bits.py::test_a_worker_that_dies_with_the_shared_factor_changes_no_bit",
        "faults/test_chaos.py::test_random_kills_change_no_bit_and_lose_nothing",
        "faults/test_chaos.py::test_a_worker_killed_and_a_connection_broken_at_a_phase_change_no_bit",
    ),
    "2 all workers are gone": (
        "engine/test_waiting.py::test_no_worker_for_the_timeout_is_an_error_with_a_remedy_and_not_a_wait",
        "engine/test_waiting.py::test_workers_that_all_leave_in_mid_pass_are_an_error_after_the_timeout",
        "faults/test_workers.py::"
        "test_a_last_worker_that_dies_with_a_finished_state_is_an_error_after_the_timeout_and_no_endless_wait",
        "engine/test_kills.py::test_all_workers_killed_and_new_ones_started_go_on_to_the_same_bits",
    ),
    "3 the scheduler is killed": (
        "engine/test_kills.py::"
        "test_a_killed_scheduler_is_an_error_that_names_the_checkpoint_and_a_rerun_has_the_same_bits",
    ),
    "3 the scheduler is killed at the last moment": (
        "faults/test_scheduler.py::"
        "test_a_scheduler_that_dies_with_a_task_that_folds_the_checkpoint_is_named_and_nothing_is_lost",
    ),
    "3 the scheduler is stopped": (
        "faults/test_scheduler.py::test_a_scheduler_that_is_stopped_before_a_plan_is_named_and_not_waited_for",
    ),
    "4 the client is killed or interrupted": (
        "engine/test_kills.py::test_a_client_killed_on_the_threaded_scheduler_resumes_to_the_same_bits",
        "engine/test_kills.py::test_a_client_killed_on_a_cluster_frees_the_workers_and_resumes_to_the_same_bits",
        "storage/test_outputs.py::test_several_processes_write_at_once_and_chunks_finished_before_a_kill_are_kept",
        "cli/test_commands.py::test_the_same_line_continues_after_a_stop_between_its_outputs",
        "engine/test_waiting.py::test_an_interrupted_run_leaves_no_task_and_its_tasks_stop_reading",
        "engine/test_interrupts.py::test_an_interrupt_at_any_line_leaves_no_task",
        "cli/test_processes.py::test_an_interrupted_fit_says_how_to_resume_and_resumes_to_the_same_bits",
    ),
    "5 the disk fills up under an output": (
        "estimators/linear/test_plan.py::test_scores_larger_than_the_free_disk_are_rejected_before_any_read",
        "faults/test_disks.py::test_a_disk_that_fills_up_under_scores_leaves_nothing_visible_and_a_rerun_continues",
        "faults/test_disks.py::test_a_limit_on_the_size_of_files_is_an_error_too",
    ),
    "6 the disk fills up under a checkpoint or the spill": (
        "engine/test_checkpoint.py::test_a_disk_full_from_the_start_is_rejected_before_any_read",
        "engine/test_checkpoint.py::test_a_disk_that_fills_up_is_warned_of_once_and_the_run_continues_to_the_same_bits",
        "engine/test_checkpoint.py::"
        "test_a_disk_that_fills_up_on_a_cluster_is_warned_of_once_and_the_run_continues_to_the_same_bits",
        "faults/test_disks.py::"
        "test_a_full_spill_disk_is_no_matter_for_stored_rows_and_is_named_where_chunks_were_persisted",
    ),
    "10 a chunk of another place or run": ("data/test_verify.py::test_swapped_chunks_are_found_with_a_manifest",),
    "5 an output that cannot be written": (
        "cli/test_failures.py::test_an_error_of_writing_is_none_of_the_input",
        "cli/test_failures.py::test_a_name_longer_than_the_file_system_takes_is_rejected_before_any_read",
    ),
    "10 a file of gigabytes of nothing": (
        "security/test_sizes.py::test_a_chunk_file_larger_than_its_chunk_can_be_is_not_read",
        "security/test_sizes.py::test_metadata_are_looked_at_before_they_are_parsed_and_named",
    ),
    "10 values that were never written, in HDF5": (
        "data/test_hdf5.py::test_chunks_that_were_never_written_are_an_error_or_filled_on_request",
    ),
    "10 a file whose header or pages lie": (
        "data/test_hdf5.py::test_damage_anywhere_in_a_file_is_named_or_changes_only_values",
        "security/test_untrusted_data.py::test_tensors_fill_a_safetensors_file_without_holes_and_overlaps",
        "security/test_untrusted_data.py::test_a_page_of_parquet_whose_checksum_is_wrong_is_named",
    ),
    "11 the input changes between passes": (
        "faults/test_inputs.py::test_a_chunk_that_is_rewritten_between_two_reads_stops_the_fit",
        "engine/test_checkpoint.py::test_a_changed_chunk_is_rejected_on_resume_with_its_rows",
        "passes/test_project.py::test_another_map_or_a_changed_input_does_not_continue_an_unfinished_output",
    ),
    "26 two runs on one output": (
        "storage/test_lock.py::test_a_live_process_is_named_and_a_killed_one_is_taken_over",
        "storage/test_lock.py::test_of_many_contenders_for_a_dead_lock_exactly_one_wins",
        "storage/test_outputs.py::test_two_runs_on_one_output_exclude_each_other",
        "engine/test_checkpoint.py::test_two_runs_on_one_checkpoint_are_rejected",
    ),
    "27 the output is there already": (
        "passes/test_project.py::"
        "test_an_existing_output_is_rejected_before_any_read_and_replaced_where_that_was_asked_for",
        "storage/test_outputs.py::test_a_kill_at_any_step_leaves_old_or_new_and_the_rerun_leaves_no_litter",
        "storage/test_outputs.py::test_overwriting_keeps_the_old_output_until_the_new_one_is_complete",
    ),
    "28 a worker with too little memory": (
        "estimators/linear/test_plan.py::test_on_a_cluster_the_tightest_worker_decides",
        "engine/test_elastic.py::test_a_group_that_kills_its_workers_alone_is_blamed_with_rows_memory_and_remedy",
        "faults/test_measured_peaks.py::test_the_measured_peak_of_a_fit_is_within_its_plan",
        "faults/test_measured_peaks.py::test_the_measured_peak_of_a_worker_is_within_the_plan",
    ),
    "29 the system kills a worker for memory": (
        "faults/test_workers.py::test_a_group_whose_worker_the_system_kills_for_memory_is_named_with_the_numbers",
        "faults/test_workers.py::test_memory_that_a_worker_may_not_have_is_a_memory_error_at_once",
    ),
    "30 a slow worker": (
        "faults/test_workers.py::test_a_straggler_gets_few_groups_and_changes_no_bit",
        "engine/test_traffic.py::test_a_slow_first_group_does_not_let_all_other_states_pile_up_in_memory",
        "faults/test_network.py::test_a_link_of_a_few_megabits_changes_no_bit",
        "faults/test_network.py::test_a_network_of_long_delays_changes_no_bit",
    ),
    "31 a network that breaks": (
        "faults/test_network.py::test_a_link_that_is_down_for_a_while_changes_no_bit_and_counts_no_row_twice",
    ),
    "32 other versions on workers": (
        "engine/test_joining.py::test_versions_that_break_a_run_are_rejected_and_others_are_reported",
        "engine/test_joining.py::test_other_versions_on_a_worker_are_reported_once_and_bigpca_may_lie_on_its_path",
    ),
    "33 bigpca is missing on workers": (
        "engine/test_joining.py::test_a_worker_without_bigpca_or_with_a_broken_one_is_rejected_with_the_ways_to_install_it",
    ),
    "34 the result depends on workers or schedule": (
        "engine/test_same_bits.py::test_two_workers_give_the_bits_of_one_thread",
        "estimators/test_every_estimator.py::test_threads_give_the_bits_of_one_thread",
        "estimators/test_every_estimator.py::test_worker_processes_give_the_bits_of_one_thread",
    ),
    "35 the end of the walltime": (
        "engine/test_elastic.py::test_a_worker_that_is_preempted_or_at_the_end_of_its_lifetime_costs_segments_in_flight",
        "engine/test_elastic.py::"
        "test_a_worker_that_is_retired_in_mid_pass_is_asked_to_finish_and_loses_nothing_but_segments_in_flight",
        "cli/test_processes.py::test_an_interrupted_fit_says_how_to_resume_and_resumes_to_the_same_bits",
    ),
    "36 a hundred thousand chunks": (
        "engine/test_traffic.py::test_a_store_of_100000_chunks_makes_at_most_2000_tasks",
        "engine/test_traffic.py::test_what_the_client_holds_does_not_grow_with_the_number_of_groups",
        "engine/test_traffic.py::test_few_segments_are_on_their_way_at_a_time",
    ),
    "a full or closed stdout or stderr": (
        "cli/test_lost_streams.py::test_words_that_cannot_be_written_are_dropped",
        "cli/test_lost_streams.py::test_a_fit_whose_words_are_lost_saves_its_model",
    ),
    "a process ends while it is looked at": (
        "test_cluster.py::test_a_child_that_ended_since_it_was_listed_listens_nowhere",
    ),
    "a run at an object store stops": (
        "faults/test_places.py::test_a_run_that_stops_at_any_request_is_completed_by_a_rerun",
        "faults/test_places.py::test_a_fit_that_stops_at_any_request_resumes_to_the_same_bits",
        "faults/test_places.py::test_a_save_that_stops_at_any_request_is_completed_by_a_rerun",
        "faults/test_places.py::test_a_run_that_is_killed_is_completed_by_a_rerun",
        "faults/test_places.py::test_workers_without_any_shared_disk_one_of_which_is_killed_give_the_bits_of_a_disk",
    ),
    "an object store answers wrongly, late or not": (
        "storage/test_places.py::test_a_failed_or_lost_answer_is_tried_again",
        "storage/test_places.py::test_a_body_that_is_cut_is_got_again",
        "storage/test_places.py::test_a_store_that_does_not_answer_is_an_error_with_the_key",
        "faults/test_places.py::test_credentials_that_expire_in_the_middle_are_named_and_a_rerun_resumes",
    ),
    "two runs at one URL": (
        "faults/test_places.py::test_two_equal_runs_both_succeed",
        "faults/test_places.py::test_two_equal_runs_of_a_table_both_succeed",
        "faults/test_places.py::test_runs_of_different_identity_are_told_apart",
        "faults/test_places.py::test_a_late_chunk_of_an_older_run_is_named",
        "faults/test_places.py::test_a_second_writer_of_features_is_rejected_until_it_is_said_to_resume",
        "faults/test_places.py::test_a_foreign_zarr_json_is_named_and_kept",
    ),
    "an input that cannot be read for a moment": (
        "faults/test_inputs.py::test_a_read_that_fails_twice_is_tried_again_to_the_same_bits",
    ),
}


def test_every_test_that_the_table_of_faults_names_exists() -> None:
    for test in (test for tests in FAULTS.values() for test in tests):
        file, name = test.split("::")
        tree = ast.parse((TESTS / file).read_text())
        assert name in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)], test
