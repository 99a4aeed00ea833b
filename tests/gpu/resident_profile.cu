/* resident_profile.cu - the resident kernel once more, with clocks read between its phases: for the
 * benchmark alone. */
#define RESIDENT_PROFILE
#define resident_run            resident_profile_run
#define resident_init           resident_profile_init
#define resident_compiled       resident_profile_compiled
#define resident_clear          resident_profile_clear
#define resident_supports       resident_profile_supports
#define resident_exchange_bytes resident_profile_exchange_bytes
#define resident_sentinel_bytes resident_profile_sentinel_bytes
#define resident_sum_bytes      resident_profile_sum_bytes
#include "cuda/kernels/resident/resident.cu"
