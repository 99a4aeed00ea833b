# Completion of nvllmd for bash.
# shellcheck shell=bash

_nvllmd_options() {
    case $1 in
        check-config) echo '--json' ;;
        tokenize) echo '--json --jsonl --special' ;;
        detokenize) echo '--json --jsonl --skip-special' ;;
        render) echo '--json --jsonl' ;;
    esac
    echo '--config --set --model --socket --backend --help --version'
}

_nvllmd() {
    local cur prev command=''
    COMPREPLY=()
    cur=${COMP_WORDS[COMP_CWORD]}
    prev=${COMP_WORDS[COMP_CWORD - 1]}
    # “--backend=cpu” is three words here.
    if [[ $cur == '=' ]]; then
        cur=''
    elif [[ $prev == '=' ]]; then
        prev=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    if [[ $COMP_CWORD -gt 1 && ${COMP_WORDS[1]} != -* ]]; then
        command=${COMP_WORDS[1]}
    fi
    case $prev in
        --config | --socket)
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            return
            ;;
        --model)
            mapfile -t COMPREPLY < <(compgen -d -- "$cur")
            return
            ;;
        --backend)
            mapfile -t COMPREPLY < <(compgen -W 'auto cpu cuda' -- "$cur")
            return
            ;;
        --set)
            mapfile -t COMPREPLY < <(compgen -S = -W "$(nvllmd --help 2>/dev/null |
                sed -nE 's/^  ([a-z]+\.[a-z_]+)$/\1/p')" -- "$cur")
            compopt -o nospace 2>/dev/null
            return
            ;;
    esac
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_nvllmd_options "$command")" -- "$cur")
    elif [[ $COMP_CWORD -eq 1 ]]; then
        mapfile -t COMPREPLY < <(compgen -W 'check-config check tokenize detokenize render' -- "$cur")
    fi
}

complete -o filenames -F _nvllmd nvllmd
