#compdef @program@
# Completion of @program@ for zsh.

_@program@_commands() {
    local -a commands
    commands=(
%zsh-commands
    )
    _describe command commands
}

_nvllmctl_requests() {
    local -a requests
    requests=(${(f)"$(nvllmctl requests --timeout 1 2>/dev/null | awk 'NR > 1 { print $1 }')"})
    _describe request requests
}

_@program@() {
    local curcontext=$curcontext state line
    local -a common
    typeset -A opt_args
    common=(
%zsh-common
    )
    _arguments -C $common \
%zsh-own
        '1: :_@program@_commands' '*:: :->rest' && return
    [[ $state == rest ]] || return
    curcontext=${curcontext%:*:*}:@program@-$words[1]:
    case $words[1] in
%zsh-options
    esac
}

_@program@ "$@"
