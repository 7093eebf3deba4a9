"""Z85: binary data in 85 printable characters, four bytes in five characters (RFC 32; rule Z85-01).

ZeroMQ programs use it for CURVE keys: 32 bytes are 40 characters that are safe in configuration files, shells and source code.
"""

from __future__ import annotations

_ALPHABET = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUE = {character: value for value, character in enumerate(_ALPHABET)}
_OCTETS_PER_GROUP = 4
_CHARACTERS_PER_GROUP = 5
_GROUP_MAX = 0xFFFF_FFFF  # "#####" would be 4,437,053,124: the alphabet reaches further than four bytes


class Z85Error(ValueError):
    """The input has no Z85 form: wrong length, a character outside the alphabet, or a group above 2^32 - 1.

    Attributes:
        offset: index of the first wrong byte or character (the length if that is wrong).
    """

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason)
        self.offset = offset


def encode(octets: bytes) -> bytes:
    """Encode bytes, a multiple of four of them, as Z85 characters.

    Raises:
        Z85Error: the length is not a multiple of four.
    """
    if len(octets) % _OCTETS_PER_GROUP:
        raise Z85Error(f"{len(octets)} bytes are not a multiple of {_OCTETS_PER_GROUP}", len(octets))
    text = bytearray()
    for start in range(0, len(octets), _OCTETS_PER_GROUP):
        group = int.from_bytes(octets[start : start + _OCTETS_PER_GROUP], "big")
        group, fifth = divmod(group, 85)
        group, fourth = divmod(group, 85)
        group, third = divmod(group, 85)
        first, second = divmod(group, 85)
        text += bytes((_ALPHABET[first], _ALPHABET[second], _ALPHABET[third], _ALPHABET[fourth], _ALPHABET[fifth]))
    return bytes(text)


def decode(text: bytes | str) -> bytes:
    """Decode Z85 characters, a multiple of five of them, to the bytes they stand for.

    Raises:
        Z85Error: the length is not a multiple of five, a character is not of the alphabet, or five characters stand for more
            than four bytes hold.
    """
    characters = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(characters) % _CHARACTERS_PER_GROUP:
        raise Z85Error(f"{len(characters)} characters are not a multiple of {_CHARACTERS_PER_GROUP}", len(characters))
    octets = bytearray()
    for start in range(0, len(characters), _CHARACTERS_PER_GROUP):
        group = 0
        for offset in range(start, start + _CHARACTERS_PER_GROUP):
            value = _VALUE.get(characters[offset])
            if value is None:
                raise Z85Error(f"byte {characters[offset]:02x} at {offset} is not a Z85 character", offset)
            group = group * 85 + value
        if group > _GROUP_MAX:
            raise Z85Error(f"the group at {start} does not fit in {_OCTETS_PER_GROUP} bytes", start)
        octets += group.to_bytes(_OCTETS_PER_GROUP, "big")
    return bytes(octets)
