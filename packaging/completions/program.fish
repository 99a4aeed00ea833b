# Completion of @program@ for fish.

function __nvllmctl_requests
    nvllmctl requests --timeout 1 2>/dev/null | awk 'NR > 1 { print $1 "\t" $2 " " $4 }'
end

function __nvllmctl_sessions
    nvllmctl sessions --timeout 1 2>/dev/null | awk 'NR > 1 { print $NF "\t" $1 " turns" }'
end

# No command takes a file but behind an option.
complete -c @program@ -f
%flags
complete -c @program@ -l @option@ -d '@help@'
%end
%values
complete -c @program@ -l @option@ -x -a '@fish-offer@' -d '@help@'
%end
%own
complete -c @program@ -n __fish_use_subcommand -l @option@ -d '@help@'
%end
%commands
complete -c @program@ -n __fish_use_subcommand -f -a @command@ -d '@about@'
%flags
complete -c @program@ -n '__fish_seen_subcommand_from @command@' -l @option@ -d '@help@'
%end
%values
complete -c @program@ -n '__fish_seen_subcommand_from @command@' -l @option@ -x -a '@fish-offer@' -d '@help@'
%end
%end
%words
complete -c @program@ -n '__fish_seen_subcommand_from @command@' -f -a '@fish-offer@'
%end
