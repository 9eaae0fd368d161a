#compdef mig-mps
# Completion of mig-mps for zsh. It goes to _mig-mps in a directory of $fpath, such as
# /usr/local/share/zsh/site-functions

_mig-mps() {
    local -a lines whole whole_shown begun begun_shown options
    local line value width=0
    lines=("${(@f)$(mig-mps __complete "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    lines=("${(@)lines:#}")
    for value in "${(@)lines%%$'\t'*}"; do
        (( $#value > width )) && width=$#value
    done
    for line in "${(@)lines}"; do
        value=${line%%$'\t'*}
        if [[ $line == *$'\t'* ]]; then
            line="${(r:width:)value}  -- ${line#*$'\t'}"
            options=(-l)
        fi
        # The tilde of a user's directory stays as it is, and everything else is quoted.
        [[ $PREFIX == \~* ]] && value=${${(q)value}#\\}
        if [[ $value == *[=/] ]]; then
            begun+=("$value") begun_shown+=("$line")
        else
            whole+=("$value") whole_shown+=("$line")
        fi
    done
    [[ $PREFIX == \~* ]] && options+=(-Q)
    (( $#whole )) && compadd $options -V mig-mps -d whole_shown -a whole
    (( $#begun )) && compadd $options -V mig-mps -S '' -d begun_shown -a begun
}

if [[ $funcstack[1] == _mig-mps ]]; then
    _mig-mps "$@"
else
    compdef _mig-mps mig-mps
fi
