"""Operations on a batch's rows and ids: distinct bags, chosen rows, sums over ranks, packed ids."""
