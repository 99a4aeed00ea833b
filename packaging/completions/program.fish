# Completion of @program@ for fish.

function __nvllmctl_requests
    nvllmctl requests --timeout 1 2>/dev/null | awk 'NR > 1 { print $1 "\t" $2 " " $4 }'
end

# No command takes a file but behind an option.
complete -c @program@ -f
%fish-options
