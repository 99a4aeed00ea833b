/* log_ids.h - MESSAGE_ID of each event in the journal. An id never changes, nor goes to another
 * event: people filter by it. In the order of the names, as bsearch() needs it; nvllmd(8) lists
 * them. */
#ifndef NVLLM_DAEMON_LOG_IDS_H
#define NVLLM_DAEMON_LOG_IDS_H

static const struct log_id {
    const char *event, *id;
} log_ids[] = {
    {"accept_paused", "50a74cff026f4c84aa8ff5f8d837115f"},
    {"admin_operation", "f11fc8de3eb449c88f8de0e973e1d036"},
    {"asleep", "2e7abed5658e430d856980bb0977e471"},
    {"awake", "f99e6ae5c3c74558bad367d4ab3e1d35"},
    {"backend_fell_to_cpu", "9fddb5fef12147098c1d5c6a1f99f50d"},
    {"cache_disk", "0dd6a32cc059453497bfc82d73d9c869"},
    {"cancelling", "d9f0b7c0e6f64abf9c86269bdefda9aa"},
    {"cannot_start", "dd1c84e44fa940d781ace0d9a2729d41"},
    {"connection_dropped", "0b1f3790be0642fd9aaf6ec4a380626b"},
    {"connection_refused", "ea3d9d2048ec40429e19cfdf06744ffa"},
    {"connection_turned_away", "2d4579fe90cf4f1da7e3deeab99a14f8"},
    {"drain_over", "46d1d9af3dd440f3951bc8cc9eddb5e7"},
    {"draining", "539bc950fc1a4092aac307276f67594e"},
    {"ended", "5f1bfb255eef4f8dbde54e17c7836f95"},
    {"engine_failed", "975d8cbac0ba4e79848fdfc9b2829097"},
    {"engine_stuck", "cf9e4f4204fb485693c70a70c92c2150"},
    {"few_descriptors", "a3d1165a531a4dec81f03b05c05c6f96"},
    {"following", "8ae9d26c59b14751a432c342ab95f6fc"},
    {"listening", "64403c6a70d44907babeab119dfba360"},
    {"log_dropped", "71cc128fb45b49009ede424776790f49"},
    {"loop_failed", "704540b76a0144adba29c5c1268ca41b"},
    {"metrics", "ef0ebaeebff6418f8b761a4dcb422905"},
    {"metrics_failed", "fbd07c316d79406ea23f9805dee33ce7"},
    {"no_chat_template", "0cab9e0c70154b969819e59f32cd0700"},
    {"no_nvml", "af5368ee74184c20b197b4248a5a6a17"},
    {"option_changed", "e0284275ec9b4fdea99c648c9c1726bc"},
    {"option_needs_restart", "32f46174fc864b1ca5196bd0bcde15a0"},
    {"ready", "1fe52838127f42fdbd21e6ef4db35835"},
    {"reload_refused", "6744c1d7ac7f4c5f89db0d451ea7b5e5"},
    {"reloaded", "ea96e66bd684474ab09acdcde48041e6"},
    {"session_file", "e695acc866c54497a4d34001f464ef11"},
    {"session_not_saved", "f0e030c394084f80a68cfc8b2691aeb8"},
    {"sessions_in_memory", "4ce713dcb74146938651e42afa0b2d43"},
    {"sessions_read", "ae587265707c45709bb4d1785e9e9ef5"},
    {"socket_lost", "cc734f07942c400cafa3584189f688b7"},
    {"socket_not_watched", "905ef80cfff34212bcec78c850ab878d"},
    {"socket_renewed", "32cfb2b5711d4766a6d0acfdb25fe574"},
};

#endif
