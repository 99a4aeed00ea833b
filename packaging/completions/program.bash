# Completion of @program@ for bash.
# shellcheck shell=bash

_@program@_options() {
    case $1 in
%commands
        @command@) echo '
%flags
            --@option@
%end
%values
            --@option@
%end
        ' ;;
%end
    esac
    echo '
%flags
        --@option@
%end
%values
        --@option@
%end
    '
}

_nvllmctl_requests() {
    nvllmctl requests --timeout 1 2>/dev/null | awk 'NR > 1 { print $1 }'
}

_nvllmctl_sessions() {
    nvllmctl sessions --timeout 1 2>/dev/null | awk 'NR > 1 { print $NF }'
}

# Values of an option ("command:--option"), a line each; fails for an option that takes none.
_@program@_values() {
    local cur=$2
    case $1 in
%values
        *:--@option@) @bash-offer@ ;;
%end
%commands
%values
        @command@:--@option@) @bash-offer@ ;;
%end
%end
        *) return 1 ;;
    esac
    return 0
}

# The arguments of a command.
_@program@_words() {
    local cur=$2
    case $1 in
%words
        @command@) @bash-offer@ ;;
%end
        '') @bash-offer@ ;;
    esac
}

_@program@() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command='' i values
    COMPREPLY=()
    # “--option=value” is three words here.
    if [[ $cur == '=' ]]; then
        cur=''
    elif [[ $prev == '=' ]]; then
        prev=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
            -*)
                if _@program@_values ":${COMP_WORDS[i]}" '' >/dev/null; then
                    i=$((i + 1))
                    if [[ ${COMP_WORDS[i]} == '=' ]]; then
                        i=$((i + 1))
                    fi
                fi
                ;;
            *)
                command=${COMP_WORDS[i]}
                break
                ;;
        esac
    done
    if values=$(_@program@_values "$command:$prev" "$cur"); then
        if [[ $prev == --set ]]; then
            compopt -o nospace 2>/dev/null
        fi
    elif [[ $cur == -* ]]; then
        values=$(compgen -W "$(_@program@_options "$command")" -- "$cur")
    else
        values=$(_@program@_words "$command" "$cur")
    fi
    if [[ -n $values ]]; then
        mapfile -t COMPREPLY <<<"$values"
    fi
}

complete -o filenames -F _@program@ @program@
