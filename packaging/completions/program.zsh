#compdef @program@
# Completion of @program@ for zsh.

_@program@_commands() {
    local -a commands
    commands=(
%commands
        '@command@:@about@'
%end
    )
    _describe command commands
}

_nvllmctl_requests() {
    local -a requests
    requests=(${(f)"$(nvllmctl requests --timeout 1 2>/dev/null | awk 'NR > 1 { print $1 }')"})
    _describe request requests
}

_nvllmctl_sessions() {
    local -a sessions
    sessions=(${(f)"$(nvllmctl sessions --timeout 1 2>/dev/null | awk 'NR > 1 { print $NF }')"})
    _describe session sessions
}

_@program@() {
    local curcontext=$curcontext state line
    local -a common
    typeset -A opt_args
    common=(
%flags
        '@repeats@--@option@[@help@]'
%end
%values
        '@repeats@--@option@=[@help@]:value:@zsh-offer@'
%end
    )
    _arguments -C $common \
%own
        '--@option@[@help@]' \
%end
        '1: :_@program@_commands' '*:: :->rest' && return
    [[ $state == rest ]] || return
    curcontext=${curcontext%:*:*}:@program@-$words[1]:
    case $words[1] in
%commands
        @command@)
            _arguments $common \
%flags
                '@repeats@--@option@[@help@]' \
%end
%values
                '@repeats@--@option@=[@help@]:value:@zsh-offer@' \
%end
                '@arguments@: :@zsh-offer@'
            ;;
%end
    esac
}

_@program@ "$@"
