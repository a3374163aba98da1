"""The ten points of the security checklist, and the tests that cover each; a test that is gone or renamed fails here.

1. No pickle in any file of bigpca's
   tests/security/test_files_written.py::test_every_file_that_is_written_holds_numbers_or_json
   tests/security/test_files_written.py::test_nothing_is_unpickled_to_read_models_checkpoints_and_stores
   tests/security/test_files_written.py::test_a_flipped_byte_anywhere_in_a_model_is_rejected_or_changes_nothing
   tests/security/test_files_written.py::test_a_checkpoint_with_objects_is_rejected_and_read_anew
   tests/storage/test_groups.py::test_no_damage_anywhere_is_believed
   tests/storage/test_groups.py::test_array_metadata_that_bigpca_never_writes_is_rejected_and_no_code_runs
   tests/estimators/shared/test_saving.py::test_a_whole_but_wrong_model_is_rejected
2. Inputs are untrusted data: codecs, dtypes, sizes
   tests/security/test_untrusted_data.py::test_codecs_that_are_not_on_the_list_are_rejected_before_the_first_chunk
   tests/security/test_untrusted_data.py::test_object_dtypes_are_rejected_before_the_first_chunk
   tests/security/test_untrusted_data.py::test_false_shapes_and_chunks_are_rejected_before_memory_is_asked_for
   tests/security/test_untrusted_data.py::test_large_chunks_inside_the_array_are_rejected_by_the_plan
   tests/security/test_untrusted_data.py::test_a_chunk_that_decodes_to_more_than_its_shape_is_not_decoded
   tests/security/test_untrusted_data.py::test_a_bomb_inside_a_shard_is_not_decoded
   tests/security/test_sizes.py::test_a_chunk_file_larger_than_its_chunk_can_be_is_not_read
   tests/security/test_sizes.py::test_metadata_are_looked_at_before_they_are_parsed_and_named
   tests/security/test_sizes.py::test_metadata_of_more_chunks_than_can_be_listed_are_rejected
   tests/security/test_sizes.py::test_a_model_whose_chunk_is_of_gigabytes_is_not_read
   tests/security/test_sizes.py::test_a_checkpoint_whose_record_is_of_gigabytes_is_an_error
   tests/security/test_untrusted_data.py::test_an_npy_of_labels_that_promises_more_than_it_holds_is_rejected
   tests/security/test_untrusted_data.py::test_a_torch_file_is_never_unpickled
   tests/security/test_untrusted_data.py::test_tensors_fill_a_safetensors_file_without_holes_and_overlaps
   tests/security/test_untrusted_data.py::test_a_filter_plugin_of_hdf5_is_not_loaded
   tests/security/test_files_written.py::test_a_checkpoint_that_promises_more_than_it_holds_is_rejected_and_read_anew
   tests/estimators/kernel/test_kernel_saving.py::test_training_rows_in_other_places_are_read_only_where_the_caller_names_them
   tests/estimators/kernel/test_kernel_saving.py::test_a_model_that_names_other_places_opens_nothing
   tests/data/test_zarr_reader.py::test_v2_dtypes_that_are_not_real_numbers_are_rejected
   tests/data/test_bad_files.py::test_object_arrays_are_rejected_without_unpickling
   tests/data/test_bad_files.py::test_hdf5_data_in_other_files_are_rejected
   tests/data/test_bad_files.py::test_truncated_flat_files_are_named_with_both_sizes
   tests/data/test_bad_labels.py::test_pickled_objects_are_never_loaded_and_broken_arrays_are_named
   tests/data/test_bad_labels.py::test_codecs_that_could_run_code_are_rejected
   tests/storage/test_groups.py::test_false_declarations_are_rejected_even_with_valid_hashes
3. Versions without known holes
   tests/security/test_the_code.py::test_versions_with_known_holes_are_not_installed
4. Schedulers: TLS, one interface, strangers rejected
   tests/security/test_tls.py::test_a_member_is_let_in_and_strangers_are_rejected
   tests/security/test_tls.py::test_every_connection_of_the_cluster_is_encrypted_and_plain_ones_are_not_even_configured
   tests/security/test_tls.py::test_the_command_line_joins_by_the_certificates_of_dask_s_configuration
   tests/security/test_tls.py::test_the_command_line_never_connects_in_plain_text_where_encryption_is_required
   tests/security/test_the_code.py::test_no_recipe_listens_on_all_interfaces
5. Loopback by default, dashboards too
   tests/test_cluster.py::test_the_recipe_for_one_machine_resumes_gives_the_same_bits_and_rejects_strangers
   tests/security/test_the_code.py::test_every_local_cluster_binds_its_dashboard_to_loopback
6. TLS of the templates is really spoken
   tests/test_notebook.py::test_the_notebook_runs_over_tls_and_leaves_nothing_in_the_cluster
   tests/test_cluster.py::test_a_directory_of_certificates_is_private_and_never_overwritten
7. Files: modes, links, credentials
   tests/security/test_files_written.py::test_files_are_as_private_as_the_umask_asks
   tests/security/test_files_written.py::test_links_in_the_places_of_locks_manifests_and_states_are_not_written_through
   tests/security/test_files_written.py::test_a_link_in_the_place_of_a_checkpoints_files_is_replaced_and_not_followed
   tests/security/test_text_shown.py::test_no_repr_plan_model_or_checkpoint_holds_the_credentials_of_a_url
   tests/security/test_text_shown.py::test_no_error_names_the_credentials_of_a_url
   tests/security/test_text_shown.py::test_no_command_prints_the_credentials_of_a_url
   tests/security/test_text_shown.py::test_no_name_in_a_file_reaches_a_terminal_raw_or_makes_a_long_message
   tests/cli/test_failures.py::test_no_escape_sequence_of_a_path_reaches_a_terminal_and_no_message_is_long
   tests/security/test_text_shown.py::test_no_line_of_the_log_holds_credentials
   tests/storage/test_lock.py::test_a_link_in_the_place_of_the_lock_is_not_followed
   tests/storage/test_outputs.py::test_a_foreign_folder_in_the_place_of_the_partial_output_is_not_removed
8. HTML is escaped
   tests/security/test_text_shown.py::test_names_labels_paths_and_parameters_run_nothing_in_a_notebook
   tests/engine/test_progress.py::test_the_notebook_bar_updates_one_display_and_escapes_names
9. No eval, no shell, no YAML that makes objects; overwriting needs a flag
   tests/security/test_the_code.py::test_no_source_evaluates_text_unpickles_or_calls_a_shell
   tests/cli/test_failures.py::test_existing_outputs_are_rejected_before_any_read
   tests/cli/test_failures.py::test_an_output_that_would_destroy_the_source_or_another_output_is_rejected_even_with_overwrite
10. SECURITY.md says whom bigpca trusts
   tests/security/test_checklist.py::test_the_trust_model_names_all_five
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
POINTS = re.split(r"^\d+\. ", __doc__ or "", flags=re.MULTILINE)[1:]


def test_every_point_is_covered_by_tests_that_are_there() -> None:
    assert len(POINTS) == 10
    for point in POINTS:
        listed = re.findall(r"(\S+\.py)::(\w+)", point)
        assert listed, point
        for path, name in listed:
            functions = {
                node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)
            }
            assert name in functions, f"{path}::{name}"


def test_the_trust_model_names_all_five() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    for words in (
        "Cluster members are trusted", "Data files are not trusted",
        "Model, state and checkpoint files are not trusted",
        "Dashboards have no login", "Pickles of estimators", "DASK_CONFIG", "report a vulnerability privately",
    ):  # fmt: skip
        assert words in text, words
