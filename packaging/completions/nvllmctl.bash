# Completion of nvllmctl for bash.
# shellcheck shell=bash

_nvllmctl_options() {
    case $1 in
        chat) echo '--system --think --no-think --quiet --max-tokens --min-tokens --temperature --top-k --top-p --min-p --repetition-penalty --presence-penalty --frequency-penalty --logit-bias --seed --stop --stop-token-id --ignore-eos --priority --cache-salt --deadline-ms --keep-special' ;;
        generate) echo '--prompt --prompt-file --chat --raw --system --think --no-think --json --max-tokens --min-tokens --temperature --top-k --top-p --min-p --repetition-penalty --presence-penalty --frequency-penalty --logit-bias --seed --stop --stop-token-id --ignore-eos --logprobs --n --priority --cache-salt --deadline-ms --keep-special' ;;
        batch) echo '--input --output --concurrency --json --max-tokens --min-tokens --temperature --top-k --top-p --min-p --repetition-penalty --presence-penalty --frequency-penalty --logit-bias --seed --stop --stop-token-id --ignore-eos --logprobs --n --priority --cache-salt --deadline-ms --keep-special' ;;
        tokenize) echo '--special --json --jsonl' ;;
        detokenize) echo '--skip-special --json --jsonl' ;;
        render) echo '--json --jsonl' ;;
        status) echo '--json' ;;
        requests) echo '--limit --json' ;;
        blocks) echo '--map --json' ;;
        cache) echo '--limit --all --prompt --prompt-file --chat --raw --system --think --no-think --user --cache-salt --json' ;;
        explain) echo '--prompt --prompt-file --chat --raw --system --think --no-think --cache-salt --json' ;;
        top) echo '--interval --once' ;;
        cancel) echo '' ;;
        drain) echo '--end-after' ;;
        resume) echo '' ;;
        reload) echo '--json' ;;
        log-level) echo '' ;;
        stop) echo '' ;;
        bench) echo '--streams --rate --prompt-tokens --output-tokens --requests --duration --workload --nano-vllm --temperature --seed --warm-cache --json' ;;
        doctor) echo '--config --model --user --json' ;;
        version) echo '' ;;
        help) echo '' ;;
    esac
    echo '--socket --timeout --wait --no-wait --help'
}

# The words that a command takes besides options.
_nvllmctl_words() {
    case $1 in
        cache) echo 'show clear pin unpin' ;;
        log-level) echo 'error warning info debug' ;;
        help) echo 'chat generate batch tokenize detokenize render status requests blocks cache explain top cancel drain resume reload log-level stop bench doctor version help' ;;
        cancel | explain) nvllmctl requests --timeout 1 2>/dev/null | awk 'NR > 1 { print $1 }' ;;
    esac
}

_nvllmctl() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command='' i
    COMPREPLY=()
    # “--priority=high” is three words here.
    if [[ $cur == '=' ]]; then
        cur=''
    elif [[ $prev == '=' ]]; then
        prev=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
            --socket | --timeout)
                i=$((i + 1))
                if [[ ${COMP_WORDS[i]} == '=' ]]; then
                    i=$((i + 1))
                fi
                ;;
            -*) ;;
            *)
                command=${COMP_WORDS[i]}
                break
                ;;
        esac
    done
    case $prev in
        --config | --input | --output | --prompt-file | --socket | --workload)
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            return
            ;;
        --model)
            mapfile -t COMPREPLY < <(compgen -d -- "$cur")
            return
            ;;
        --user)
            mapfile -t COMPREPLY < <(compgen -u -- "$cur")
            return
            ;;
        --priority)
            mapfile -t COMPREPLY < <(compgen -W 'low normal high' -- "$cur")
            return
            ;;
        --cache-salt | --concurrency | --deadline-ms | --duration | --end-after | --frequency-penalty | --interval | --limit | --logit-bias | --logprobs | --max-tokens | --min-p | --min-tokens | --n | --output-tokens | --presence-penalty | --prompt | --prompt-tokens | --rate | --repetition-penalty | --requests | --seed | --stop | --stop-token-id | --streams | --system | --temperature | --timeout | --top-k | --top-p)
            return
            ;;
    esac
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_nvllmctl_options "$command")" -- "$cur")
    elif [[ -z $command ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_nvllmctl_words help)" -- "$cur")
    else
        # No command takes a file but behind an option: what it would get is the file's name.
        mapfile -t COMPREPLY < <(compgen -W "$(_nvllmctl_words "$command")" -- "$cur")
    fi
}

complete -o filenames -F _nvllmctl nvllmctl
