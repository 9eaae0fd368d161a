# Completion of mig-mps for bash (4.4 or newer). It goes to /etc/bash_completion.d/mig-mps, or for one user to
# ~/.local/share/bash-completion/completions/mig-mps

_mig_mps() {
    # Bash has split the words at = and : too. They are joined again where no space separates them.
    local rest=${COMP_LINE:0:COMP_POINT} words=() part
    for part in "${COMP_WORDS[@]:0:COMP_CWORD}"; do
        [[ ${#words[@]} -gt 0 && $rest != [[:space:]]* ]] || words+=("")
        rest=${rest#"${rest%%[![:space:]]*}"}
        words[-1]+=$part
        rest=${rest#"$part"}
    done
    # Readline replaces $2, the end of the word before the cursor.
    local whole=$rest
    if [[ $rest == [[:space:]]* || ${#words[@]} -eq 0 ]]; then
        whole=${rest#"${rest%%[![:space:]]*}"}
    else
        whole=${words[-1]}$rest
        unset 'words[-1]'
    fi
    local before=${whole%"$2"} quote=
    [[ $before == *[\"\'] ]] && quote=${before: -1}
    before=${before//[\"\'\\]/}

    local lines line value width=0 files= quoted=
    mapfile -t lines < <(mig-mps __complete "${words[@]}" "$before${2//\\/}" 2>/dev/null)
    COMPREPLY=()
    for line in "${lines[@]}"; do
        value=${line%%$'\t'*}
        [[ -e ${value/#\~/$HOME} ]] && files=1
        value=${value#"$before"}
        # What the shell would take for something else is quoted here: readline leaves some of it as it is.
        if [[ $value == *[^[:alnum:]_./:=,+@%~-]* ]]; then
            quoted=1
            case $quote in
                \') value=${value//\'/\'\\\'\'} ;;
                \") value=${value//[\\]/\\\\} value=${value//\"/\\\"} value=${value//\$/\\\$} value=${value//\`/\\\`} ;;
                *)
                    printf -v line %q "${value#\~/}"
                    [[ $value == \~/* ]] && line="~/$line"
                    value=$line
                    ;;
            esac
        fi
        COMPREPLY+=("$value")
        ((${#value} > width)) && width=${#value}
    done
    if [[ $files && ! $quoted ]]; then
        # Readline adds the slash of a directory itself.
        COMPREPLY=("${COMPREPLY[@]%/}")
        compopt -o filenames
    elif [[ ${#lines[@]} -eq 1 && ${COMPREPLY[0]} == *[=/] ]]; then
        compopt -o nospace
    elif [[ ${#lines[@]} -gt 1 && $COMP_TYPE != 37 && $COMP_TYPE != 42 ]]; then
        # A list shows what the candidates are. Readline inserts what they have in common, which ends before that.
        local number
        for number in "${!lines[@]}"; do
            [[ ${lines[number]} == *$'\t'?* ]] || continue
            printf -v line '%-*s  (%s)' "$width" "${COMPREPLY[number]}" "${lines[number]#*$'\t'}"
            COMPREPLY[number]=${line:0:COLUMNS > 8 ? COLUMNS - 1 : 79}
        done
    fi
}

complete -o nosort -F _mig_mps mig-mps
